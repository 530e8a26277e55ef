"""The pages with forms: what a browser can submit, upload and change without a program."""
