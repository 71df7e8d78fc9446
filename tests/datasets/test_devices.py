"""Where a pretrained model may run."""

import pytest

from attsvm.base.errors import InputError, UnavailableError
from attsvm.base.pretrained import DTYPES
from attsvm.datasets.devices import check_device


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_processor_computes_with_every_type(dtype):
    check_device("cpu", dtype)


@pytest.mark.parametrize(
    ("device", "dtype", "sentence"),
    [
        ("gpu", "float32", r"device 'gpu' is unknown; this machine has cpu"),
        ("meta", "float32", r"device 'meta' is unknown; this machine has cpu"),
        ("", "float32", r"device '' is unknown; this machine has cpu"),
        ("cpu", "half", r"dtype is 'half'; choose float32, bfloat16 or float16"),
    ],
)
def test_what_names_no_device_or_type(device, dtype, sentence):
    with pytest.raises(InputError, match=sentence):
        check_device(device, dtype)


@pytest.mark.parametrize("device", ["cuda:77", "mps:77"])
def test_a_device_that_is_not_here_is_one_sentence(device):
    with pytest.raises(UnavailableError, match=rf"^device {device} with .* this machine has cpu"):
        check_device(device)
