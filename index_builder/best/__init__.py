"""`recollect train --best`: trains several encoders within a time limit, and keeps the best one."""
