"""Settings: one frozen value for each process, read from flags, variables and a file, and checked once.

    load_settings                       the settings of a process, or InvalidSetting with the wrong one's name
    BrokerSettings, ManagerSettings     what there is to be set; the fields are the table of all settings
    describe, settings_of, default_of   the same for people, and for the command line
    blaming                             names the setting, when only its use shows that it cannot work

Where a setting is given in several places, the first of these counts: a flag, a `TALWEG_*` variable, a
variable of the reference documents (PORT, MANAGER_ADDRESS, CURRENT_ADDRESS, READ_ONLY), the file's table for
the process, the file's top, the default. The file is TOML and is named by `--config` or by TALWEG_CONFIG. One
file may serve all processes: what stands at its top is for all, what stands under [broker] for brokers.
"""

from talweg.config.loading import blaming, default_of, describe, load_settings
from talweg.config.settings import BrokerSettings, ManagerSettings, ProcessSettings, Setting, settings_of

__all__ = [
    "BrokerSettings",
    "ManagerSettings",
    "ProcessSettings",
    "Setting",
    "blaming",
    "default_of",
    "describe",
    "load_settings",
    "settings_of",
]
