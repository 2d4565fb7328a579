"""Parts of the generator: endpoints, breakers, rates and what a fault leads to."""
