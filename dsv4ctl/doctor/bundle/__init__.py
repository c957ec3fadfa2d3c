"""`dsv4ctl doctor --bundle FILE`: everything that a bug report needs, in one file, without secrets."""
