"""Tests of the dashboard. It is a package so that its browser is started once for all of them."""
