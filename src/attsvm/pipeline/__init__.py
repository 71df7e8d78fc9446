"""The main job: from a data set to a run folder with a certified verdict."""

from attsvm.pipeline.fit import FitSettings, fit_dataset

__all__ = ["FitSettings", "fit_dataset"]
