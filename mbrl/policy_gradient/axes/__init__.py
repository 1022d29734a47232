"""The axes of an objective, a file each; a file is named as the field of `Recipe` or `Term`."""
