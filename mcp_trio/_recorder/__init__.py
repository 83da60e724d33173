"""The recorder: writes the records of sessions to files, and reads their lines back."""
