"""Experiments computed, judged, drawn and put on one page: ``attsvm reproduce``."""
