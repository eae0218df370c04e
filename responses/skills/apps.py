"""Django app configuration of skills."""

from django.apps import AppConfig


class SkillsConfig(AppConfig):
    name = "responses.skills"
    label = "skills"
    verbose_name = "Skills"
