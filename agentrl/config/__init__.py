"""Run files: what may stand in one, how it is read, and what is wrong with it."""

from agentrl.config.dump import dump_config
from agentrl.config.load import ConfigError, load_config
from agentrl.config.run import RunConfig

__all__ = ["ConfigError", "RunConfig", "dump_config", "load_config"]
