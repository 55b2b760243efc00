"""Using a trained model: loading runs."""
