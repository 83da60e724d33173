"""The file of a recording: where records are written to and read from."""
