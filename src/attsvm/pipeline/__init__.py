"""The main job: from a data set to a run folder with a certified verdict."""
