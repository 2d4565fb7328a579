"""Talking to servers of the target model."""
