"""From files on disk to augmented batches on the device. Most modules here need torch; import them by name."""
