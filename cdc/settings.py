"""What all settings share. Each part owns a model beside the code that uses it; ``lockstep.config`` composes them."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """What all our settings share."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
