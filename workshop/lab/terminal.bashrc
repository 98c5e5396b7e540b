# What bash reads in a terminal of the course's JupyterLab: the files of a login shell, then our commands first.
if [ -r /etc/profile ]; then . /etc/profile; fi
for file in ~/.bash_profile ~/.bash_login ~/.profile; do
  if [ -r "$file" ]; then
    . "$file"
    break
  fi
done
unset file
if [ -n "$WORKSHOP_COMMANDS" ]; then
  PATH="$WORKSHOP_COMMANDS:$PATH"
  export PATH
fi
