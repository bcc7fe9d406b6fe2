"""What crosses between processes: frames of bytes, and the messages in them."""
