"""A plugin for mdiff-adapters: an engine that hides numbers and a segmenter for whole pages."""
