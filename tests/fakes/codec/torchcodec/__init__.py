"""A fake of torchcodec: this folder's parent on ``sys.path`` takes its place."""
