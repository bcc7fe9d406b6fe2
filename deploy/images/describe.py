"""Describes pictures: python deploy/images/describe.py photo.jpg ... (beside corosrv serve --model ... --mmproj ...)"""

import base64
import mimetypes
import os
import sys
from pathlib import Path

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), api_key="none")
for path in map(Path, sys.argv[1:]):
    kind, _ = mimetypes.guess_type(path)
    url = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    question = {"type": "text", "text": "What is in this picture?"}
    content = [question, {"type": "image_url", "image_url": {"url": url}}]
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": content}], max_tokens=40
    )
    print(path, answer.choices[0].message.content)
