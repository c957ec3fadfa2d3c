"""What lets the real engine run on a machine without a GPU."""
