"""What notebook 07 uses: vLLM inside of a Python process, and the folder of the teaching model.

>>> from workshop.course import nb07
>>> (nb07.TEACHING_FOLDER / "config.json").is_file()
True
"""

from workshop.batch import offline
from workshop.servers.local import TEACHING_FOLDER

__all__ = ["TEACHING_FOLDER", "offline"]
