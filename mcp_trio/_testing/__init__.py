"""Test tools: fake channels, faults, scripted peers and simulations."""
