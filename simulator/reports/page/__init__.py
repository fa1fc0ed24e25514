"""report.html: what was found, on one page that can be mailed, printed and read on a phone."""
