"""The catalogue of a folder of recordings, queries, statistics, and the retention of recordings."""
