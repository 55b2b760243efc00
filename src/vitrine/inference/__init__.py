"""Using a trained model: load it, classify pictures with it, export it."""
