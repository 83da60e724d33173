"""The journal's records: to bytes and back, checked and compared. Pure."""
