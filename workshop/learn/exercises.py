"""The former place of `workshop.check` and `workshop.predict`."""

from workshop.course.exercises import check as check
from workshop.course.exercises import predict as predict
