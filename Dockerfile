# A run as a service, from the pinned versions and not as root:
#
#     docker build -t norewind .
#     docker run -p 8000:8000 -v $PWD/runs:/runs -e NOREWIND_TOKEN norewind serve /runs/power --host 0.0.0.0
#
# The user in the container (10001) must be able to write to the run folder.
FROM python:3.13-slim

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY norewind norewind
RUN pip install --no-cache-dir -c constraints.txt pip \
 && pip install --no-cache-dir -c constraints.txt --build-constraint constraints.txt '.[serve]' \
 && useradd --uid 10001 --create-home norewind

USER 10001
WORKDIR /home/norewind
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
ENTRYPOINT ["norewind"]
CMD ["serve", "--help"]
