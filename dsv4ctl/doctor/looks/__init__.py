"""What hosts are asked, and how the answers are read: a module for each part of a box."""
