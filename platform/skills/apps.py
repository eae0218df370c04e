"""Django app configuration of skills."""

from django.apps import AppConfig


class SkillsConfig(AppConfig):
    name = "skills"
    label = "skills"
    verbose_name = "Skills"
