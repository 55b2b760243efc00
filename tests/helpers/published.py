"""The Vision Transformer as published, where vitrine's defaults differ from it."""

# arXiv:2010.11929 and timm's VisionTransformer: learned positions, a class token, no stochastic depth.
PUBLISHED = {"position": "learned", "class_token": True, "pool": "cls", "drop_path": 0.0}
