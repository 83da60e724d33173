"""Sessions: the reader, dispatcher, writer and handlers of one connection."""
