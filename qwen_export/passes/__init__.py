"""Passes: custom operators become standard ones, one idea a file; `pipeline.py` holds their order."""
