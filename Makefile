# Every target is one or two commands; `make help` lists them.
# Makes the environment if it is not there, then runs a program of it: $(IN) [SET] -- COMMAND
# It takes the Python that PYTHON=… names, else the first one that works.
IN := sh locks/start.sh
export PYTHON

.PHONY: help workshop dev test bench model slides site lite planner assignment lock docs
.DEFAULT_GOAL := help

help:       ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18
	@echo "  LOCAL=no: without the local server (no torch); WORKSHOP_URL=…: use that server; PYTHON=…: another Python"

workshop:   ## set everything up, start a server, open JupyterLab on the first notebook (Ctrl-C ends both)
	@$(IN) -- workshop lab

dev:        ## what `make workshop` installs, and the tests' packages (a minute): then .venv/bin/python -m pytest tests/planner
	@$(IN) dev

test:       ## set up and run every test that this machine can run
	@$(IN) dev -- python -P tests/run_all.py

bench:      ## measure what the README says (about 10 minutes)
	@$(IN) dev -- python benchmarks/start.py

model:      ## renew what depends on the teaching model: the steps, what each needs (make model STEP=…; STEP=all: all but training)
	@$(IN) dev -- python -m benchmarks.teaching_model.renew $(STEP)

slides:     ## build the slides of both days: slides/build/*.html and *.pdf (needs Node with npm, and Chromium)
	@$(IN) -- python slides/build.py

site:       ## pages for any web server or a USB stick: notebooks as they ran, the planner live (10 minutes; goes on where it stopped; needs npm)
	@$(IN) -- python docs/site/website.py

docs:       ## renew the generated pages, tables and pictures (CONTRIBUTING.md names those that take minutes)
	@$(IN) dev -- python docs/make.py

assignment: ## a notebook for otter-grader, without solutions: make assignment NOTEBOOK=01_memory
	@$(IN) -- python docs/assignment.py $(NOTEBOOK) --to assignment

lite:       ## the course as a JupyterLab in the browser alone (78 % of its cells work there), for any web server: site/lite (SERVE=8000: serve it; needs npm)
	@$(IN) -- python docs/site/lite/build.py $(if $(SERVE),--serve $(SERVE))

planner:    ## the planner alone as a wheel without dependencies: dist/inference_planner-….whl (uvx runs it: planner/README.md)
	@$(IN) -- python -P -m pip wheel -q --no-index --no-deps --no-build-isolation -w dist ./planner && ls dist/inference_planner-*.whl

lock:       ## renew the locked versions (needs the network)
	@$(IN) dev -- python locks/renew.py
