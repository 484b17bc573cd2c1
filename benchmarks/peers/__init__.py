"""Other implementations of the same work, measured in the same rounds when they are installed."""
