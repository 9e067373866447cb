"""The decision: stores, decides, tells; serves people, CI jobs and traffic."""
