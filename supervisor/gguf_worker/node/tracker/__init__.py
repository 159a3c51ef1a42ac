"""Where nodes find each other: registrations, leases, certificates, and the routes that follow from them."""
