"""A page to try a trained model in a browser: one HTML file that computes the model itself, in JavaScript."""
