"""The version of Dibs. The package's metadata has it from here."""

VERSION = "0.1.0"
