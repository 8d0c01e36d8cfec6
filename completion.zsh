#compdef holdfast
# What stands after "--" is another program's: holdfast must not be run for it.
_holdfast() {
    local -a given=("${(@)words[1,CURRENT-1]}")
    if (( ${given[(Ie)--]} )); then
        _normal
        return
    fi
    if [[ $words[CURRENT] == -* ]]; then
        given+=(-)
    elif [[ $CURRENT -ne 2 ]]; then
        if [[ $words[2] == completion ]]; then compadd bash zsh fish; else _files; fi
        return
    fi
    compadd -- "${(@f)$("${given[@]}" --generate-bash-completion 2>/dev/null)}"
}
compdef _holdfast holdfast
