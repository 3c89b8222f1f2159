"""What every JSON body has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A JSON object. Unknown fields, wrong types and values out of bounds are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
