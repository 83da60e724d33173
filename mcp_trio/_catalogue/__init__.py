"""The catalogue of a folder of recordings: what is in each, finding them, statistics, retention."""
