"""Where feature rows live."""

from .feature_store import FeatureStore

__all__ = ["FeatureStore"]
