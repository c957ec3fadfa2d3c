"""`dsv4ctl doctor --deep`: data is moved as the engines would move it, and looked at where it arrives."""
