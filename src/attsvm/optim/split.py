"""Which parameters are attention matrices: those to one optimiser, the rest to another."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from attsvm.base.errors import InputError

Role = Literal["query", "key", "value", "output"]
Blocks = Literal["roles", "heads"] | int | None
Select = str | Callable[[str, Tensor], bool | None]

# What the rows of a matrix of this name hold, in an attention layer of torch, Hugging Face, timm
# and the usual hand-written models.
_ROLES: dict[str, tuple[Role, ...]] = {
    **dict.fromkeys(
        (
            "query",
            "q_proj",
            "query_proj",
            "q_lin",
            "q",
            "wq",
            "to_q",
            "q_attn",
            "q_a_proj",
            "q_b_proj",
            "query_global",
            "q_proj_weight",
        ),
        ("query",),
    ),
    **dict.fromkeys(
        ("key", "k_proj", "key_proj", "k_lin", "k", "wk", "to_k", "key_global", "k_proj_weight"),
        ("key",),
    ),
    **dict.fromkeys(
        (
            "value",
            "v_proj",
            "value_proj",
            "v_lin",
            "v",
            "wv",
            "to_v",
            "value_global",
            "v_proj_weight",
        ),
        ("value",),
    ),
    **dict.fromkeys(
        ("o_proj", "out_proj", "out_lin", "o", "wo", "to_out", "c_proj", "dense", "proj"),
        ("output",),
    ),
    **dict.fromkeys(
        ("kv", "to_kv", "kv_proj", "kv_a_proj_with_mqa", "kv_b_proj"), ("key", "value")
    ),
    **dict.fromkeys(
        (
            "c_attn",
            "query_key_value",
            "qkv_proj",
            "wqkv",
            "qkv",
            "to_qkv",
            "in_proj_weight",
            "in_proj",
        ),
        ("query", "key", "value"),
    ),
    "w": ("query", "key"),  # the combined matrix of attsvm.attention.Attention
}
# names that say attention by themselves, for a matrix three times as tall as wide
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "wqkv", "qkv", "to_qkv")
# factors of low rank: their rows are not heads
_LOW_RANK = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_ATTENTION = re.compile("att(ention|n)", re.IGNORECASE)
_HEAD_WIDTH = ("head_dim", "attention_head_size", "key_value_proj_dim", "d_head")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")


@dataclass(frozen=True)
class Matrix:
    """One attention matrix.

    Attributes:
        name: its first name in the model.
        parameter: the tensor.
        roles: what its rows hold, in order: one role, or several for a fused matrix.
        axis: the axis of the outputs, on which roles and heads lie: -2, or -1 for matrices stored
            as inputs by outputs (GPT-2's ``Conv1D``) and for output projections, whose heads are on
            the side of the inputs.
        head_width: entries of one head along ``axis``, None where the module does not tell.
        sizes: length of each role along ``axis``, None where roles are interleaved head by head or
            unknown.
    """

    name: str
    parameter: Tensor
    roles: tuple[Role, ...]
    axis: int
    head_width: int | None
    sizes: tuple[int, ...] | None

    def blocks(self, by: Blocks) -> int | tuple[int, ...] | None:
        """The blocks that :class:`~attsvm.optim.SteepestDescent` treats as matrices of their own;
        None for the whole.
        """
        if by is None or self.parameter.ndim != 2 or (by != "heads" and len(self.roles) == 1):
            return None
        if isinstance(by, int):
            return by
        if by == "roles" and self.sizes is not None:
            return len(self.sizes) if len(set(self.sizes)) == 1 else self.sizes
        length = self.parameter.shape[self.axis]
        if self.head_width and length % self.head_width == 0 and length > self.head_width:
            return length // self.head_width
        return None


@dataclass(frozen=True, repr=False)
class Split:
    """The parameters of a model in two groups; its representation is the table of its groups.

    Attributes:
        matrices: the attention matrices, in the order of the model.
        others: name and tensor of every other trainable parameter.
        frozen: names of parameters that are not trained and belong to neither.
        by: how fused matrices are cut, as given to :func:`split_params`.

    Example:
        >>> import torch
        >>> from attsvm.optim import split_params
        >>> split_params(torch.nn.MultiheadAttention(8, num_heads=2))
        attention  in_proj_weight   (24, 8)  x 1  query, key, value; 3 equal blocks of rows
        rest       in_proj_bias     (24,)    x 1
        rest       out_proj.weight  (8, 8)   x 1
        rest       out_proj.bias    (8,)     x 1
        192 entries in attention, 96 in the rest, 0 frozen parameters in neither
    """

    matrices: tuple[Matrix, ...]
    others: tuple[tuple[str, Tensor], ...]
    frozen: tuple[str, ...] = ()
    by: Blocks = field(default="roles")

    @property
    def attention(self) -> list[dict[str, Any]]:
        """Parameter groups of the attention matrices, with ``param_names``; ``blocks`` and
        ``blocks_axis`` where they apply.
        """
        # matrices that are cut alike are one group
        kinds: dict[Any, list[Matrix]] = {}
        for matrix in self.matrices:
            blocks = matrix.blocks(self.by)
            kinds.setdefault(None if blocks is None else (blocks, matrix.axis), []).append(matrix)
        groups = []
        for kind, members in kinds.items():
            group: dict[str, Any] = {
                "params": [m.parameter for m in members],
                "param_names": [m.name for m in members],
            }
            if kind is not None:
                blocks, group["blocks_axis"] = kind
                group["blocks"] = blocks if isinstance(blocks, int) else list(blocks)
            groups.append(group)
        return groups

    @property
    def rest(self) -> list[dict[str, Any]]:
        """The group of all other trainable parameters, with ``param_names``; an empty list where
        there are none.
        """
        if not self.others:
            return []
        return [
            {
                "params": [tensor for _, tensor in self.others],
                "param_names": [name for name, _ in self.others],
            }
        ]

    def __repr__(self) -> str:
        rows: dict[tuple[str, ...], int] = {}
        for matrix in self.matrices:
            notes = [", ".join(matrix.roles)] if matrix.roles else []
            blocks = matrix.blocks(self.by)
            if blocks is not None:
                kind = f"{blocks} equal" if isinstance(blocks, int) else f"{blocks}"
                notes.append(f"{kind} blocks of {'rows' if matrix.axis == -2 else 'columns'}")
            note = "; ".join(notes)
            _count_in_table(rows, "attention", matrix.name, matrix.parameter, note)
        for name, tensor in self.others:
            _count_in_table(rows, "rest", name, tensor, "")
        lines = [
            (side, name, shape, f"x {count}", note)
            for (side, name, shape, note), count in rows.items()
        ]
        width = [max(len(line[column]) for line in lines) for column in range(4)]
        text = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, [*width, 0], strict=True)).rstrip()
            for line in lines
        ]
        sizes = [
            sum(t.numel() for t in ts)
            for ts in ([m.parameter for m in self.matrices], [t for _, t in self.others])
        ]
        text.append(
            f"{sizes[0]:,} entries in attention, {sizes[1]:,} in the rest, {len(self.frozen)}"
            " frozen parameters in neither"
        )
        return "\n".join(text)


def split_params(
    model: nn.Module,
    roles: Collection[Role] = ("query", "key"),
    select: Select | None = None,
    blocks: Blocks = "roles",
) -> Split:
    """Return the attention matrices of ``model`` on one side, everything else that is trained on
    the other.

    Matrices are recognised by name inside a module whose name or class says attention:
    ``torch.nn.MultiheadAttention`` and what is built from it,
    :class:`attsvm.attention.Attention`, Hugging Face models (``query``, ``q_proj``, ``q_lin``,
    ``c_attn``, ``query_key_value``, ...), timm. A matrix that is called ``qkv``, or by another
    usual name of fused ones, and is three times as tall as wide is recognised in any module.
    Convolution kernels stay in the rest unless
    ``select`` names them: their last two axes are space, which no spectral norm means. A matrix in
    which queries or keys are fused with values goes to attention whole, with the blocks to treat
    apart. Biases and vectors stay in the rest, frozen parameters in neither, a tied parameter is
    listed once.

    Args:
        model: any module, before or after ``DistributedDataParallel`` or ``fully_shard``.
        roles: which matrices count as attention: "query", "key", "value", "output".
        select: decides by name instead: a regular expression that is searched in the name of every
            parameter that is no vector, or a function of name and tensor that returns True
            (attention), False (rest) or None (as recognised).
        blocks: "roles" cuts fused matrices into queries, keys and values (into heads, where they
            are interleaved head by head); "heads" cuts every attention matrix into its heads; a
            number cuts what is fused, or selected and not recognised, into so many equal blocks;
            None leaves matrices whole.

    Raises:
        InputError: nothing was found, an unknown role or kind of blocks, a ``select`` that is not a
            regular expression, a number of blocks that does not divide a matrix.

    Example:
        >>> import torch
        >>> from attsvm.optim import split_params
        >>> layer = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
        >>> split = split_params(layer)
        >>> len(split.attention), [name for name, _ in split.others][:3]
        (1, ['self_attn.in_proj_bias', 'self_attn.out_proj.weight', 'self_attn.out_proj.bias'])
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module")
    unknown = sorted(set(roles) - {"query", "key", "value", "output"})
    if unknown or not roles:
        raise InputError(
            f"roles is {list(roles)!r}; give some of 'query', 'key', 'value', 'output'"
        )
    is_number = isinstance(blocks, int) and not isinstance(blocks, bool) and blocks > 0
    if not is_number and blocks not in ("roles", "heads", None):
        raise InputError(
            f"blocks is {blocks!r}; give 'roles', 'heads', a number of equal blocks, or None"
        )
    choose = _as_choice(select)
    # a tied parameter has several names
    names: dict[Tensor, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names.setdefault(tensor, []).append(name)
    matrices: list[Matrix] = []
    others: list[tuple[str, Tensor]] = []
    frozen: list[str] = []
    for parameter, aliases in names.items():
        if not parameter.requires_grad:
            frozen.append(aliases[0])
            continue
        recognised = [_recognise(model, alias, parameter) for alias in aliases]
        matrix = next((match for match in recognised if match is not None), None)
        has_role = matrix is not None and not set(matrix.roles).isdisjoint(roles)
        # the caller's choice, where there is one for a name, comes before what the name says
        choices = [choice for alias in aliases if (choice := choose(alias, parameter)) is not None]
        if any(choices) or (has_role and not choices):
            matrices.append(matrix or Matrix(aliases[0], parameter, (), -2, None, None))
        else:
            others.append((aliases[0], parameter))
    if not matrices:
        raise InputError(_describe_no_match(model, roles, select, others))
    for matrix in matrices:
        if isinstance(cut := matrix.blocks(blocks), int):
            # one of these messages is enough: the name comes before it
            length = matrix.parameter.shape[matrix.axis]
            if length % cut:
                raise InputError(
                    f"blocks is {blocks!r}, which does not divide the {length} outputs of"
                    f" {matrix.name}; select other matrices, or cut them in a group of their own"
                )
    return Split(tuple(matrices), tuple(others), tuple(frozen), blocks)


def _as_choice(select: Select | None) -> Callable[[str, Tensor], bool | None]:
    """Return ``select`` as a function of name and tensor: attention, rest, or None for what is
    recognised.
    """
    if select is None:
        return lambda name, tensor: None
    if callable(select):
        return select
    try:
        pattern = re.compile(select)
    except (re.error, TypeError) as error:
        raise InputError(
            f"select is {select!r}, which is no regular expression ({error}); give one, or a"
            " function of name and tensor"
        ) from error
    # a pattern for a layer finds its bias too
    return lambda name, tensor: tensor.ndim > 1 and pattern.search(name) is not None


def _recognise(model: nn.Module, name: str, parameter: Tensor) -> Matrix | None:
    """Return the attention matrix that a parameter is by its name; None where it is none. Adapters
    inside a projection (``q_proj.lora_A.default.weight``) count as the projection.

    1. The last word of the path that is a name of projections, among the last five.
    2. Whether the modules around it say attention, or its shape that it is fused.
    3. The roles of its rows.
    4. The axis on which they lie, and their sizes.
    """
    path = name.split(".")
    holder = model.get_submodule(".".join(path[:-1]))
    # the last two axes of a convolution are space
    if parameter.ndim < 2 or isinstance(holder, nn.modules.conv._ConvNd):
        return None
    for depth in range(len(path) - 1, max(len(path) - 5, -1), -1):
        roles = _ROLES.get(path[depth].lower())  # 1
        if roles is None:
            continue
        # outputs are rows, except in Conv1D
        is_transposed = depth < len(path) - 1 and type(
            model.get_submodule(".".join(path[:-1]))
        ).__name__.endswith("Conv1D")
        outputs, inputs = parameter.shape[-2:][:: -1 if is_transposed else 1]
        # 2: words of the path, or classes of the modules above
        is_fused = path[depth].lower() in _FUSED and outputs == 3 * inputs
        owner = model.get_submodule(".".join(path[:depth]))
        above = model.get_submodule(".".join(path[: max(depth - 1, 0)]))
        if not is_fused and not any(
            _ATTENTION.search(word)
            for word in (
                *path[max(depth - 2, 0) : depth],
                type(owner).__name__,
                type(above).__name__,
            )
        ):
            return None
        # 3
        if len(roles) == 3 and hasattr(owner, "q_attn"):
            roles = ("key", "value")  # GPT-2's cross-attention keeps its queries apart
        if path[depth] == "W" and depth == len(path) - 1:
            return Matrix(name, parameter, roles, -2, None, None)
        if path[depth].lower() == "w" or (depth < len(path) - 1 and path[-1] != "weight"):
            return None
        # 4: heads of an output projection are among its inputs
        axis = -1 if is_transposed != (roles == ("output",)) else -2
        width = None if path[depth] in _LOW_RANK else _head_width(owner)
        sizes = _role_sizes(owner, path[depth], roles, parameter.shape[axis], width)
        return Matrix(name, parameter, roles, axis, width, sizes)
    return None


def _size_setting(module: nn.Module, names: Collection[str]) -> int | None:
    """Return the first of these attributes that is a positive integer, of a module or its config;
    None without one.
    """
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _head_width(owner: nn.Module) -> int | None:
    """Return the entries of a head of an attention module; None where it does not tell."""
    width, heads = _size_setting(owner, _HEAD_WIDTH), _size_setting(owner, _HEADS)
    size = _size_setting(owner, ("hidden_size", "embed_dim", "d_model"))
    return width if width or not (heads and size) else size // heads


def _role_sizes(
    owner: nn.Module, leaf: str, roles: tuple[Role, ...], length: int, width: int | None
) -> tuple[int, ...] | None:
    """Return the sizes of queries, keys and values in a fused matrix of this length; None where
    they are interleaved, or there is one role alone.
    """
    if len(roles) == 1 or leaf == "query_key_value" or leaf in _LOW_RANK:
        return None  # one role; Megatron's layout, interleaved head by head; no heads
    heads, keys = _size_setting(owner, _HEADS), _size_setting(owner, _KEY_HEADS)
    # as many key heads as the module says, one for all queries, or one for each
    for count in (keys, 1, heads):
        sizes = (
            tuple((heads if role == "query" else count or 0) * width for role in roles)
            if width and heads
            else ()
        )
        if sizes and sum(sizes) == length and min(sizes) > 0:
            return sizes
    # nothing is known of heads: equal thirds or halves
    return (length // len(roles),) * len(roles) if length % len(roles) == 0 else None


def _count_in_table(
    rows: dict[tuple[str, ...], int], side: str, name: str, tensor: Tensor, note: str
) -> None:
    """Count a parameter in its row of the table; layers that differ by a number are one row."""
    pattern = ".".join("*" if word.isdigit() else word for word in name.split("."))
    key = (side, pattern, f"{tuple(tensor.shape)}", note)
    rows[key] = rows.get(key, 0) + 1


def _describe_no_match(
    model: nn.Module,
    roles: Collection[Role],
    select: Select | None,
    others: list[tuple[str, Tensor]],
) -> str:
    """Return the message that no parameter is an attention matrix, and what there is instead."""
    trained = f"among the {len(others)} trainable parameters of {type(model).__name__}"
    first = [name for name, tensor in others if tensor.ndim > 1][:3]
    present = f" (its matrices: {', '.join(first) or 'none'})"
    if select is not None:
        rule = repr(select) if isinstance(select, str) else "the function given"
        return f"select, {rule}, chose nothing {trained}{present}; choose at least one name"
    single = [name for name, rows in _ROLES.items() if len(rows) == 1 and rows[0] in roles]
    return (
        f"no {' or '.join(roles)} matrix was found {trained}{present}: looked for"
        f" {', '.join(single)} and fused forms in modules called attention; name yours with"
        " select='regular expression'"
    )
