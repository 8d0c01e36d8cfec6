# What stands after "--" is another program's: holdfast must not be run for it.
_holdfast() {
    local cur=${COMP_WORDS[COMP_CWORD]} given=("${COMP_WORDS[@]:0:COMP_CWORD}")
    COMPREPLY=()
    case " ${given[*]} " in *" -- "*) return ;; esac
    if [[ $cur == -* ]]; then
        given+=(-)
    elif [[ $COMP_CWORD -ne 1 ]]; then
        [[ ${COMP_WORDS[1]} == completion ]] && COMPREPLY=($(compgen -W "bash zsh fish" -- "$cur"))
        return
    fi
    COMPREPLY=($(compgen -W "$("${given[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o bashdefault -o default -F _holdfast holdfast
