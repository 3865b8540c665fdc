"""Feature stores: in memory, in files, and in tiers; how often rows are read."""

from .feature_store import FeatureStore
from .tier_plan import TierPlan, plan_tiers
from .tiered_rows import TierUse
from .tiered_store import TieredFeatureStore

__all__ = ["FeatureStore", "TierPlan", "TierUse", "TieredFeatureStore", "plan_tiers"]
