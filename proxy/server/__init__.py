"""What faces clients: routes, the form of answers and errors, who may ask, and the limits around them."""
